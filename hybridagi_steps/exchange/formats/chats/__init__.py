"""Readers of conversations that people had with assistants, as products and trainers write them."""
