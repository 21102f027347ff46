package main

import (
	"context"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// Pods of these nodes reach no name server beyond the cluster. The usual plugin asks one all the same, for as long as
// a resolver's patience lasts: hosts that look for a name which is not there yet would wait seconds for each answer.
func init() { plugin.Register("forward", setUpForward) }

func setUpForward(c *caddy.Controller) error {
	for c.Next() { // its arguments and its block say whom to ask
		c.RemainingArgs()
		for c.NextBlock() {
			c.RemainingArgs()
		}
	}
	dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return nobody{} })
	return nil
}

// nobody knows no name.
type nobody struct{}

func (nobody) Name() string { return "forward" }

func (nobody) ServeDNS(_ context.Context, w dns.ResponseWriter, asked *dns.Msg) (int, error) {
	answer := new(dns.Msg).SetRcode(asked, dns.RcodeNameError)
	return dns.RcodeNameError, w.WriteMsg(answer)
}
