"""The version: packages, front end and messages between processes all take this one."""

__version__ = "0.1.0"
