"""Parquet and Arrow tables, in the folders of Hugging Face's hub and library."""
