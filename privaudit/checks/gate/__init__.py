"""The gate for CI: what it asks, what it asks against, and what came of it."""
