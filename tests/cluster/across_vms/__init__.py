"""Ranks across real test VMs: a network namespace, an sshd and a link each."""
