"""`exlchat evaluate`: what it measures, as a table, JSON and a drawing."""
