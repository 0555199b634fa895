"""What a report says of each kind of answer: values alone, in functions named `*_info`, apart from
how they are drawn."""
