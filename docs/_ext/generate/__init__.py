"""What makes the generated parts of pages: each module has a function `markdown`."""
