"""Merge the output of several ranks into one text.

- `cell_output`: the output of one cell
- `differing_parts`: what may differ in a warning or an error that several ranks share;
  `shared_messages`: shows it below the merged lines
- `merger`: merges equal lines while a cell runs; `final_order`: sorts the complete output
  independently of arrival times; `rank_log`: the lines of one rank
- `sink`: destinations of the merged output; `excerpt` and `bounded_text`: the beginning and
  the end of long output
"""
