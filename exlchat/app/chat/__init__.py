"""The open conversation: sending, answering, editing, branches, drafts."""
