"""Conversations into files and out of them: our own, and those of other programs.

Everything here works on `ConversationTree` alone; files are untrusted and every look at one is bounded.
"""
