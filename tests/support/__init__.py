"""What tests of several folders share: real servers, started once."""
