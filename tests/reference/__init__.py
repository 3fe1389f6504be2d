"""A plain-Python reference of the ledger and the interpreter that compares the two."""
