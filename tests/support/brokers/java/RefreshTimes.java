import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.SaslConfigs;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.internals.expiring.ExpiringCredential;
import org.apache.kafka.common.security.oauthbearer.internals.expiring.ExpiringCredentialRefreshConfig;
import org.apache.kafka.common.security.oauthbearer.internals.expiring.ExpiringCredentialRefreshingLogin;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.Configuration;

/**
 * Prints when the Java client renews credentials. A line of the file has the window's factor, minimum
 * period and buffer in seconds, now, begin of life (or -) and its end in milliseconds; there is no jitter.
 */
public class RefreshTimes {
    record Credential(Long startTimeMs, long expireTimeMs) implements ExpiringCredential {
        public String principalName() { return "someone"; }
        public Long absoluteLastRefreshTimeMs() { return null; }
    }

    static class Login extends ExpiringCredentialRefreshingLogin {
        static final Configuration NO_ENTRIES = new Configuration() {
            public AppConfigurationEntry[] getAppConfigurationEntry(String name) { return null; }
        };

        Login(ExpiringCredentialRefreshConfig config) {
            super("KafkaClient", NO_ENTRIES, config, new OAuthBearerLoginCallbackHandler(),
                ExpiringCredentialRefreshingLogin.class);
        }
        public ExpiringCredential expiringCredential() { return null; }
    }

    public static void main(String[] args) throws Exception {
        Method refreshMs = ExpiringCredentialRefreshingLogin.class.getDeclaredMethod("refreshMs", long.class);
        refreshMs.setAccessible(true);
        Field credential = ExpiringCredentialRefreshingLogin.class.getDeclaredField("expiringCredential");
        credential.setAccessible(true);
        ConfigDef definition = new ConfigDef().withClientSaslSupport();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] parts = line.split(" ");
            Map<String, Object> given = new HashMap<>();
            given.put(SaslConfigs.SASL_LOGIN_REFRESH_WINDOW_FACTOR, parts[0]);
            given.put(SaslConfigs.SASL_LOGIN_REFRESH_WINDOW_JITTER, "0");
            given.put(SaslConfigs.SASL_LOGIN_REFRESH_MIN_PERIOD_SECONDS, parts[1]);
            given.put(SaslConfigs.SASL_LOGIN_REFRESH_BUFFER_SECONDS, parts[2]);
            Map<String, ?> configs = new AbstractConfig(definition, given, false).values();
            Login login = new Login(new ExpiringCredentialRefreshConfig(configs, true));
            Long begin = parts[4].equals("-") ? null : Long.valueOf(parts[4]);
            credential.set(login, new Credential(begin, Long.parseLong(parts[5])));
            System.out.println(refreshMs.invoke(login, Long.parseLong(parts[3])));
        }
    }
}
