"""Tests in a real browser: a JupyterLab of their own, driven through Chromium."""
