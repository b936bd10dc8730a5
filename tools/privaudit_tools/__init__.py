"""Development tools: what makes the models, tables and checks of privaudit."""
