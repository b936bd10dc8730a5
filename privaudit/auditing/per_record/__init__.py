"""What single records give away, under all attacks of an audit together."""
