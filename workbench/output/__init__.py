"""Merge the output of several ranks into one text.

- `cell_output`: the output of one cell
- `differing_parts`: the parts of a warning or an error that may differ between ranks;
  `shared_messages`: shows these parts below the merged lines
- `merger`: merges equal lines while a cell runs; `final_order`: sorts the complete output
  independently of arrival times; `rank_log`: the lines of one rank
- `sink`: destinations of the merged output; `excerpt` and `bounded_text`: the beginning and
  the end of long output
"""
