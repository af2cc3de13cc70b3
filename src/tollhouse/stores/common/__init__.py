"""What the engines share: URLs, migrations, and the words of errors that both can raise."""
