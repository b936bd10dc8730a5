"""What a model adds to a frozen transformer, as peft configures it: one file each."""
