"""One file per published table; numbers go to results/, pages are written from them."""
