import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.requests.AbstractResponse;
import java.nio.ByteBuffer;

/** Prints, for each API a client may use, the first version whose answer makes it pause (KIP-219). */
public class ClientThrottles {
    public static void main(String[] arguments) {
        for (ApiKeys api : ApiKeys.clientApis()) {
            for (short v = api.oldestVersion(); v <= api.latestVersion(true); v++) {
                Boolean throttles = throttles(api, v);
                if (throttles != null && throttles) {
                    System.out.println(api.id + " " + api.name + " " + v);
                    break;
                }
            }
        }
    }

    private static Boolean throttles(ApiKeys api, short version) {
        try {
            Message message = (Message) ApiMessageType.fromApiKey(api.id).newResponse();
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(buffer), cache, version);
            buffer.flip();
            return AbstractResponse
                .parseResponse(api, new ByteBufferAccessor(buffer), version)
                .shouldClientThrottle(version);
        } catch (RuntimeException e) {
            System.err.println(api.name + " v" + version + ": " + e);
            return null;
        }
    }
}
