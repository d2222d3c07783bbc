"""Who is speaking: personas as files, frozen into a conversation, and the character cards of other programs."""
