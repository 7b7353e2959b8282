"""What is declared once and used everywhere.

`figures` has the figures that are shown, with their labels, meanings, colours and metrics.
"""
