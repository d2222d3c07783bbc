"""What panels say, as rows: no drawing."""
