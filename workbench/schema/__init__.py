"""Declarations that several packages share.

`figures` declares the figures that are shown, with their labels, meanings, colours and metrics. Its
docstring says what a new figure needs.
"""
