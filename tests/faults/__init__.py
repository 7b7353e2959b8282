"""Faults at each stage of a cluster; a file for each stage lists its own."""
