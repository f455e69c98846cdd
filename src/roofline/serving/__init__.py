"""Steady state of a replica and of a fleet: batching, caches, queues, pools."""
