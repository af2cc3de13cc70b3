"""The one path from any caller to any tool."""
