"""Runs on disk: written while ranks train, read whatever became of their kernel."""
