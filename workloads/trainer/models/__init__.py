"""Models as functions over pytrees: a decoder, BERT, ResNet, and the parts that they share."""
