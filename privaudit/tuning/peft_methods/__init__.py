"""PEFT methods: additions to a frozen transformer, as peft configures them, one file each."""
