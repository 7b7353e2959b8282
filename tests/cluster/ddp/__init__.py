"""Clusters whose ranks torch.distributed joins: what no other backend has."""
