"""Others doing the same job in the same run; installed apart, since the product needs none of them."""
