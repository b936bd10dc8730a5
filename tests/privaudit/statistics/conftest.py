from hypothesis import settings

# Wall-clock limits per example fail on a busy machine.
settings.register_profile("statistics", deadline=None, max_examples=50)
settings.load_profile("statistics")
