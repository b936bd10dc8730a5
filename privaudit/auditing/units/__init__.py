"""What an audit counts where that is no record."""
