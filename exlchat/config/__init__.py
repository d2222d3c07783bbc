"""Settings: declared once, read from file and environment, written one by one."""
