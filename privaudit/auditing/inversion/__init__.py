"""What a server reads of records themselves out of uploads; scored elsewhere."""
