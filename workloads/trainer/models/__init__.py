"""Models as functions over pytrees: a decoder, BERT, ResNet, DLRM, and their shared parts."""
