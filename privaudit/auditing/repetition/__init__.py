"""How often a run was audited, and what that takes from each finding."""
