"""Where independent jobs run: in this process, in others of this machine, or on Ray."""
