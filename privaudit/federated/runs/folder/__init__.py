"""The folder of a run: what lies in it, who may write there, how it is found."""
