"""Load runs against the local stack; every figure in the README's performance table is printed by one of them."""
