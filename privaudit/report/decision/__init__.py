"""What the page says first: badges, five answers, and what to do."""
