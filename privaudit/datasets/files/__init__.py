"""Reading archives and tables that other people made."""
