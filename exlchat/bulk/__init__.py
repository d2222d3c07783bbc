"""Runs of a whole file of requests: read and checked, put in order, answered, written so that any end can go on."""
