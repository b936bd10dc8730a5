"""Mixtures of prompt experts, as pFedMoAP has them."""
