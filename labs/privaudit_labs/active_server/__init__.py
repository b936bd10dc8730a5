"""A server that singles out clients by what it sends them: ``privaudit active``."""
