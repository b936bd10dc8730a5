"""What a secure sum reveals; protocols that compute one are plugins."""

IN_LABS = ("masked",)
