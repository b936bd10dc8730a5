"""Execution of independent jobs: in this process, in others of this machine, or on Ray."""
