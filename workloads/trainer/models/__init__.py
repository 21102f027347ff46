"""Models as functions over pytrees: a decoder, BERT, ResNet, and their shared parts."""
