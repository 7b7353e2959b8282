"""Clusters that outlive their kernel."""
